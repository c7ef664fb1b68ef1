/** The head of a page: where it is, its title, and what can be done. */
import type { ComponentChildren } from 'preact'
import { Fragment } from 'preact'
import { t } from '../strings'

export function Head({ title, crumbs = [], children, before }: { title: ComponentChildren; crumbs?: { text: string; href: string }[]; children?: ComponentChildren; before?: ComponentChildren }) {
  return (
    <div class="head">
      {crumbs.length > 0 && (
        <nav class="crumbs" aria-label={t.where}>
          {crumbs.map((crumb, at) => (
            <Fragment key={crumb.href}>
              {at > 0 && <span aria-hidden="true">/</span>}
              <a href={crumb.href}>{crumb.text}</a>
            </Fragment>
          ))}
        </nav>
      )}
      <div class="head-title">
        {before}
        <h1>{title}</h1>
      </div>
      {children && <div class="acts">{children}</div>}
    </div>
  )
}
