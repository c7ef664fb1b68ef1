/** The frame of all pages: navigation, the page of the address, and what lies above it. */
import { useSignal } from '@preact/signals'
import { useEffect } from 'preact/hooks'
import { loggedIn, message } from '../api/client'
import { part } from '../api/parts'
import { reachable } from '../api/waits'
import { compact, runName, zoneName } from '../format'
import { useLive } from '../live/resource'
import { importCount, WAITING, waitingCount } from '../pages/requests'
import { Button, Empty, Note } from '../parts/basic'
import { Head } from '../parts/Head'
import { Icon, Logo } from '../parts/icons'
import { Questions, Toasts } from '../parts/overlay'
import { t } from '../strings'
import { Jump, jumping } from './Jump'
import { helping, KeysHelp, useKeys } from './keys'
import { Login } from './Login'
import { PLACES, type Place } from './places'
import { remember } from './recents'
import { follow, go, href, path, query, setQuery } from './router'
import { match, ROUTES, type Loader, type Page } from './routes'
import { account, load, logOut, may, mayVisit, rights } from './session'
import { theme, type Theme } from './theme'
import { ZonePicker, zoning } from './ZonePicker'

export function App() {
  const begun = useSignal(false)
  useEffect(() => {
    document.addEventListener('click', follow)
    if (path.value === '/login') go('/', { replace: true }) // where Airflow's login is; here, each page asks for it
    load()
      .then(() => query.peek().has('login') && setQuery({ login: null })) // of a used login link, which a browser with a session does not need
      .catch(() => undefined)
      .finally(() => (begun.value = true))
  }, [])
  if (!begun.value) return <Offline />
  if (!loggedIn.value) return <><Login /><Toasts /></>
  return <Shell />
}

function Shell() {
  const open = useSignal(false)
  useKeys()
  useEffect(() => path.subscribe(() => (open.value = false)), [])
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById('main')?.focus() }}>{t.skip}</a>
      <div class="shell">
        <header class="topbar">
          <Button kind="plain" icon="menu" label={t.menu} onClick={() => (open.value = !open.value)} />
          <a class="brand" href={href('/')}><Logo />{t.app}</a>
          <span class="grow" />
          <Button kind="plain" icon="search" label={t.jump.placeholder} onClick={() => (jumping.value = true)} />
        </header>
        {open.value && <button class="veil" aria-label={t.close} onClick={() => (open.value = false)} />}
        <Side open={open.value} />
        <main class="main" id="main" tabIndex={-1}>
          <Offline />
          <Routed />
        </main>
      </div>
      <Jump />
      <KeysHelp />
      <ZonePicker />
      <Questions />
      <Toasts />
    </>
  )
}

/** What pages show while the server does not answer. */
function Offline() {
  return <div role="status" class="offline-place">{!reachable.value && <div class="offline"><Icon name="imports" />{t.offline}</div>}</div>
}

function Side({ open }: { open: boolean }) {
  const at = path.value
  const is = (link: string) => (link === '/' ? at === '/' : within(at, link))
  return (
    <nav class={`side ${open ? 'open' : ''}`} aria-label={t.menu}>
      <a class="brand" href={href('/')}><Logo />{t.app}</a>
      {PLACES.map((group) => {
        const links = group.links.filter(mayVisit)
        return links.length > 0 && (
          <>
            {group.title && <h2 key={group.title}>{group.title}</h2>}
            {links.map((link) => (
              <a key={link.path} class="side-link" href={href(link.path)} aria-current={is(link.path) ? 'page' : undefined}>
                <Icon name={link.icon} />
                {link.text}
                {link.counts && <Waiting of={link.counts} />}
              </a>
            ))}
          </>
        )
      })}
      <div class="side-end stack">
        <button type="button" class="side-link" onClick={() => (jumping.value = true)}>
          <Icon name="search" />
          <span class="grow">{t.jump.placeholder}</span>
        </button>
        <Preferences />
      </div>
    </nav>
  )
}

/** How many requests wait for an answer, or how many DAG files cannot be read. */
function Waiting({ of }: { of: 'actions' | 'imports' }) {
  const isImports = of === 'imports'
  const count = useLive(isImports ? 'imports count' : WAITING, isImports ? importCount : waitingCount, { every: 20_000 }).data.value
  return count ? <span class={`count ${isImports ? 'bad' : ''}`} role="img" aria-label={isImports ? t.overview.importErrors(count) : t.actions.count(count)}>{compact(count)}</span> : null
}

function Preferences() {
  const next: Record<Theme, Theme> = { auto: 'light', light: 'dark', dark: 'auto' }
  return (
    <>
      <div class="row" style={{ padding: '0 4px', gap: '2px' }}>
        <button type="button" class="side-link grow clip" title={t.zone.pick} onClick={() => (zoning.value = true)}><Icon name="clock" /><span class="clip">{zoneName()}</span></button>
        <Button kind="plain" icon="theme" label={`${t.theme.label}: ${t.theme[theme.value]}`} onClick={() => (theme.value = next[theme.value])} />
        <Button kind="plain" icon="keyboard" label={t.keys.title} onClick={() => (helping.value = true)} />
      </div>
      <div class="row" style={{ padding: '0 4px 0 8px' }}>
        <Icon name="user" />
        <span class="clip grow" title={rights()}>{account.value?.username}<span class="small dim"> {account.value?.role ?? t.rights.limited}</span></span>
        <Button kind="plain" icon="out" label={t.login.out} onClick={() => void logOut()} />
      </div>
    </>
  )
}

const loaded = new Map<Loader, Page>()

function Routed() {
  const found = match(ROUTES, path.value)
  const page = useSignal<{ loader: Loader; view: Page } | null>(null)
  const failed = useSignal<string | null>(null)
  const loader = found?.page
  useEffect(() => {
    if (!loader || loaded.has(loader)) return
    let current = true
    failed.value = null
    part(loader)
      .then((module) => {
        loaded.set(loader, module.default)
        if (current) page.value = { loader, view: module.default }
      })
      .catch((error: unknown) => (failed.value = message(error)))
    return () => void (current = false)
  }, [loader])
  useEffect(() => {
    remember(path.value)
    document.title = [...path.value.split('/').filter(Boolean).map((one) => runName(decoded(one))).reverse().slice(0, 2), t.app].join(' · ')
  }, [path.value])
  if (!found || !loader) return <Empty title={t.notFound}><p>{t.notFoundText}</p><a class="button" href={href('/')}>{t.home}</a></Empty>
  const place = PLACES.flatMap((group) => group.links).find((one) => one.path !== '/' && within(path.value, one.path))
  if (place && !mayVisit(place) && !(found.params['bundle'] && may('viewer', [`bundle:${found.params['bundle']}`]))) return <Refused place={place} />
  // The signal is read so that the frame is drawn again when the page is loaded.
  const View = page.value?.loader === loader ? page.value.view : loaded.get(loader)
  if (View) return <View params={found.params} />
  return failed.value ? <Note kind="bad">{failed.value} <Button onClick={() => location.reload()}>{t.retry}</Button></Note> : null
}

/** Whether a page belongs to a place of the navigation. That of an asset is not below /assets, where the scripts are; tables are assets. */
const within = (at: string, place: string) => at === place || at.startsWith(`${place}/`) || (place === '/assets' && /^\/(asset|tables)(\/|$)/.test(at))

/** A page that the account may not open: which right it needs, instead of a refusal of the server. */
function Refused({ place }: { place: Place }) {
  return (
    <>
      <Head title={place.text} />
      <div class="card"><Empty title={t.rights.page}><p>{t.rights.needs(place.role ?? 'viewer')}</p><p>{rights()}</p></Empty></div>
    </>
  )
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part)
  } catch {
    return part
  }
}
