import './styles/tokens.css'
import './styles/base.css'
import './styles/shell.css'
import './styles/parts.css'
import './styles/dags.css'
import './styles/dag.css'
import './styles/task.css'
import './styles/home.css'
import './styles/docs.css'
import './styles/operate.css'
import './styles/grid.css'
import './styles/graph.css'
import { render } from 'preact'
import { App } from './shell/App'
import { applyTheme } from './shell/theme'

applyTheme()
render(<App />, document.getElementById('app')!)
